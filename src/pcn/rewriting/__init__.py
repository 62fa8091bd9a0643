"""The changes of basis as pure maths, the new layers made beforehand, the swap, and the way back."""
