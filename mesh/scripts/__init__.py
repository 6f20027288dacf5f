"""Rank scripts: one program started as several processes, which exchange numpy arrays.

    mesh-coord launch -n 4 script.py

    world = mesh.init()
    total = world.all_reduce(np.arange(3.0) * mesh.rank())

`settings.py` reads a rank's settings from its environment, and by `rendezvous.py` ranks of one machine find each other.
`channels.py` has what lies between them, `group.py` what they do together, `named_groups.py` how trees are reduced,
`world.py` the group of all ranks.  `launcher.py` starts ranks, by an `agent.py` on every host of a `hostfile.py`.
docs/scripts.md tells users.
"""
