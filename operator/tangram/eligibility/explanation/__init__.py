"""Why an LLMDeployment does not run on a shape, or on none: records with numbers, and their sentences.

In: assessed shapes, and the reason against each shape that serves (of the fleet as it is cut, or as it could
be). Out: the most relevant other shapes; why no shape serves; `words` makes the sentences that users read.
"""
