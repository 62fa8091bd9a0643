"""Statistics and plans for notebooks and papers: HTML tables, and figures with matplotlib."""
