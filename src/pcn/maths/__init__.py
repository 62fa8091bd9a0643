"""The paper's equations as pure functions on tensors."""
