"""The paper's experiments: a catalogue of settings, one way to run them, one page that shows what came out."""
