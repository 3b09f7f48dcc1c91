"""The methods, each a package with one object of type `Method`."""
