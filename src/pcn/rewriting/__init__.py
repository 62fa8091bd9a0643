"""The directions of a basis, the new layers made beforehand, the swap, and the way back."""
