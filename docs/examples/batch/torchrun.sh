#!/bin/sh
#SBATCH --job-name=train --nodes=1 --gpus=2 --cpus-per-task=8 --mem=64G --time=2:00:00
# One process for each GPU. The image has PyTorch and train.py.
export OMP_NUM_THREADS=$((SLURM_CPUS_PER_TASK / SLURM_GPUS_ON_NODE))
torchrun --standalone --nproc-per-node="$SLURM_GPUS_ON_NODE" train.py --epochs 3
