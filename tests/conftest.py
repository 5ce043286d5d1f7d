"""What the whole suite shares: the test servers' fixtures. Seeds are printed by pytest-randomly."""

pytest_plugins = ["tests.servers.fixtures"]
