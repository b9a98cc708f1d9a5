"""Files of models and tables."""
