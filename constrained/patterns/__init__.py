"""Regular languages: ECMA-262 patterns read into trees that can be intersected, complemented and written out again."""
