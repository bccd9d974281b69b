"""heart"""
