"""From a source to a chain: encoding into files, fitting, certifying, adding rows."""
