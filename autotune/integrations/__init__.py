"""Other people's engines that call our attention, each an optional extra of the package."""
