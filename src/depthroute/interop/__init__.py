"""Other libraries' ways in and out of what was trained here."""
