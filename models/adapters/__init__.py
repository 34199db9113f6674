"""Adapters: files of any known format → what each layer of a model adds, and the pages of a bank.

May import `checkpoint`, `nn.layers`, `parallel`, `spec`, `text`, `weights`.
"""
