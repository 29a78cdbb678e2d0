# What configuring says that it found.

# rankwise_report("name" found "detail"): one line of the summary.
function(rankwise_report name found detail)
  if(found)
    message(STATUS "  ${name}: ${detail}")
  else()
    message(STATUS "  ${name}: no")
  endif()
endfunction()

message(STATUS "Rankwise, ${CMAKE_BUILD_TYPE} build by ${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}, "
               "MPI ${MPI_C_VERSION}, HDF5 ${HDF5_VERSION}. Optional parts:")
set(rankwise_gpu_kind ${RANKWISE_GPU})
if(RANKWISE_GPU STREQUAL on)
  set(rankwise_gpu_kind "CUDA ${CUDAToolkit_VERSION} for ${CMAKE_CUDA_ARCHITECTURES}, NCCL ${RANKWISE_NCCL}")
endif()
rankwise_report("GPUs        " "${rankwise_gpu_kind}" "${rankwise_gpu_kind}")
rankwise_report("products by " "${rankwise_gemm_by}" "${rankwise_gemm_by}")
rankwise_report("OpenBLAS    " "${RANKWISE_OPENBLAS}" "${RANKWISE_OPENBLAS}")
rankwise_report("oneDNN      " "${RANKWISE_DNNL}" "${RANKWISE_DNNL}")
rankwise_report("ccache      " "${RANKWISE_CCACHE}" "${RANKWISE_CCACHE}")
rankwise_report("Doxygen     " "${RANKWISE_DOXYGEN}" "${RANKWISE_DOXYGEN}")
