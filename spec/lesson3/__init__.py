"""lesson3"""
