"""The question, its meaning, and its certified answer. Imports nothing else of attnspec."""
