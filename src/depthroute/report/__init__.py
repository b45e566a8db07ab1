"""A finished study as one page, its tables and its figures. Reads results.json and prereg.json; imports no torch."""
