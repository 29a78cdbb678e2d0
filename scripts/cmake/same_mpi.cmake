# HDF5 has to be built for the MPI library of the programs: with another one they would be linked, and crash at the first
# checkpoint.

# rankwise_mpi_of(result libraries...): "Open MPI" or "another MPI". Only Open MPI's constants are variables that it exports,
# so whatever is built for it refers to them by name, and nothing else does.
function(rankwise_mpi_of result)
  set(${result} "another MPI" PARENT_SCOPE)
  foreach(library IN LISTS ARGN)
    if(EXISTS ${library})
      file(STRINGS ${library} found REGEX "ompi_mpi_comm_world" LIMIT_COUNT 1)
      if(found)
        set(${result} "Open MPI" PARENT_SCOPE)
      endif()
    endif()
  endforeach()
endfunction()

# rankwise_check_same_mpi("MPI's libraries" "HDF5's libraries")
function(rankwise_check_same_mpi mpi_libraries hdf5_libraries)
  list(FILTER hdf5_libraries INCLUDE REGEX "libhdf5")
  if(NOT mpi_libraries OR NOT hdf5_libraries)
    return()  # a compiler of the machine's own brings them, both from one hand
  endif()
  rankwise_mpi_of(mpi ${mpi_libraries})
  rankwise_mpi_of(hdf5 ${hdf5_libraries})
  if(NOT mpi STREQUAL hdf5)
    list(JOIN mpi_libraries " " mpi_libraries)
    list(JOIN hdf5_libraries " " hdf5_libraries)
    message(FATAL_ERROR
      "HDF5 and the programs would run with two MPI libraries:\n"
      "  MPI:  ${mpi} (${mpi_libraries})\n"
      "  HDF5: built for ${hdf5} (${hdf5_libraries})\n"
      "Choose two that fit, in a fresh build folder: the compilers -DMPI_C_COMPILER=... and "
      "-DHDF5_C_COMPILER_EXECUTABLE=..., on Debian mpicc.openmpi with h5pcc.openmpi, or mpicc.mpich with h5pcc.mpich.")
  endif()
endfunction()
