"""Running a model without leaving a trace: how a batch reaches it, what its layers read, what it puts out."""
