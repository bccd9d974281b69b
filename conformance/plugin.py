"""The pytest plugin behind `pytest conformance --impl=NAME`."""
