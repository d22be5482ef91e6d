#!/bin/sh
#SBATCH --job-name=squares --cpus-per-task=4 --mem=1G --time=10
# A pool of processes on the cpus of the pod. The image has Python.
cat > squares.py <<'PROGRAM'
import os
from multiprocessing import Pool

def square(number):
    return number * number

if __name__ == "__main__":
    with Pool(int(os.environ["SLURM_CPUS_PER_TASK"])) as pool:
        print(sum(pool.map(square, range(100))))
PROGRAM
python3 squares.py
