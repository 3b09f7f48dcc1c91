"""Tables: their schemas, how they are read, and the sample tables that ship."""
