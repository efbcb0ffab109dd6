"""A study of several models: captures, analyses, tables, figures, a page and a README."""
