#!/usr/bin/env bash
# Calls fail when they are asked to, and devices are as the environment says: test_faults.sh FAULTY_CALLS
set -uo pipefail
program=$1
status=0

# expect TEXT SETTING...: what the program says with these settings of the environment.
expect() {
  local text=$1 said
  shift
  said=$(env "$@" "$program" 2>/dev/null)
  if [ "$said" != "$text" ]; then
    echo "FAILED: with $* the program says \"$said\", not \"$text\""
    status=1
  fi
}

expect "all is well"
expect "all is well" EMULATED_CUDA_FAULT=cudaMalloc:3
expect "cudaMalloc: cudaErrorMemoryAllocation" EMULATED_CUDA_FAULT=cudaMalloc
expect "second cudaMalloc: cudaErrorMemoryAllocation" EMULATED_CUDA_FAULT=cudaMalloc:2
expect "second cudaMalloc: cudaErrorMemoryAllocation" EMULATED_CUDA_FAULT=cudaMalloc:2:0
expect "second cudaMalloc: cudaErrorMemoryAllocation" EMULATED_CUDA_FAULT=cudaMalloc:2:3 OMPI_COMM_WORLD_RANK=3
expect "all is well" EMULATED_CUDA_FAULT=cudaMalloc:2:3 OMPI_COMM_WORLD_RANK=2
expect "cudaLaunchKernelEx: cudaErrorLaunchOutOfResources" EMULATED_CUDA_FAULT=cudaLaunchKernelEx
expect "cudaStreamSynchronize: cudaErrorIllegalAddress" EMULATED_CUDA_FAULT=kernel
expect "cudaStreamSynchronize: cudaErrorUnknown" EMULATED_CUDA_FAULT=cudaStreamSynchronize
expect "cublasLtCreate: CUBLAS_STATUS_ALLOC_FAILED" EMULATED_CUDA_FAULT=cublasLtCreate
expect "cudaGetDeviceCount: cudaErrorNoDevice" EMULATED_CUDA_DEVICES=0
expect "cudaGetDeviceCount: cudaErrorInsufficientDriver" EMULATED_CUDA_DRIVER=12020
expect "second cudaMalloc: cudaErrorMemoryAllocation" EMULATED_CUDA_MEMORY=1500
exit $status
