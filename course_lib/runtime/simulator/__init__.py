"""A cluster inside this process: ranks as threads, virtual time, exact deadlock reports."""
