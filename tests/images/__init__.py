"""The project's images, built on this machine by whatever Docker it has, or by one that is started for the purpose.

``python -m images build [operator|trainer]...``, ``python -m images save FILE NAME...``, ``python -m images test``;
tests call :func:`images.docker.docker` and :func:`images.build.build`.
"""
