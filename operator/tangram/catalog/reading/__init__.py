"""Checked reading of what people write.

In: YAML text, nested mappings. Out: values, or an `InputError` that names the field.
"""
