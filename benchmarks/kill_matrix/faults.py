def inject(name, telling): pass
