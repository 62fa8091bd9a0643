"""A plan as plain data, as JSON and as a table; making one: ranks first, then the outputs that nobody needs."""
