"""Linear memory: access from host code, saved images, mappings and dirty pages."""
