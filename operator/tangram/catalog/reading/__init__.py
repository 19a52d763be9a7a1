"""Checked reading of users' input.

In: YAML text, nested mappings. Out: values, or an `InputError` that names the field.
"""
