"""Recordings played back: played by the engine, compared with the recording, explained."""
