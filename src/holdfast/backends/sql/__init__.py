"""What MySQL and PostgreSQL do alike: sessions, their pool, and the strategies built on them.

Contract: nothing here imports a client; `dialect.py` says what a database must bring.
"""
