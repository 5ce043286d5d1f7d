"""The one logic behind both skins. Imports no clock, no thread, no event loop and no client."""
