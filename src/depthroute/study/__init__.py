"""The comparison: arms x seeds from one YAML file, trained in pairs and judged by paired differences."""
