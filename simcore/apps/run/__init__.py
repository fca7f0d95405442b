"""A job asked about: from what the command line says to a folder with the answer."""
