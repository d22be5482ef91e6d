#!/bin/sh
#SBATCH --job-name=pi --ntasks=4 --mem-per-cpu=256M --time=10
# Four ranks in one pod. The image has Open MPI and mpi4py.
mpirun -np "$SLURM_NTASKS" python3 -c '
from mpi4py import MPI

world, steps = MPI.COMM_WORLD, 200_000
part = sum(4 / (1 + ((i + 0.5) / steps) ** 2) for i in range(world.rank, steps, world.size))
pi = world.reduce(part / steps)
if world.rank == 0:
    print(f"{pi:.6f} by {world.size} ranks")
'
