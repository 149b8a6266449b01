"""Resources that all sessions on one device share."""
