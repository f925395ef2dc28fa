"""What the pages share: settings, identities, the request guard, jobs, uploads and the server."""
