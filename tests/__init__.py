"""A package, so that processes which tests start find it before one of the same name among the installed packages."""
