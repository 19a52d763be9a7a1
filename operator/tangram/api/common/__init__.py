"""What the kinds of the API have in common: values with bounds, labels and PriorityClasses."""
