# HDF5 may be built with MPI or without. One that is built for another MPI library than the programs is refused: they would be
# linked, and crash at the first checkpoint.

# rankwise_mpi_of(result libraries...): "Open MPI", "another MPI" or "none". Only Open MPI's constants are variables that it
# exports, so whatever is built for it refers to them by name, and nothing else does. All that use an MPI name its functions.
function(rankwise_mpi_of result)
  set(mpi "none")
  foreach(library IN LISTS ARGN)
    if(EXISTS ${library})
      file(STRINGS ${library} found REGEX "ompi_mpi_comm_world|MPI_Init")
      if(found MATCHES "ompi_mpi_comm_world")
        set(mpi "Open MPI")
      elseif(found AND mpi STREQUAL "none")
        set(mpi "another MPI")
      endif()
    endif()
  endforeach()
  set(${result} ${mpi} PARENT_SCOPE)
endfunction()

# rankwise_files_of(result libraries...): files in place of imported targets, with which HDF5 2 and other packages name libraries.
function(rankwise_files_of result)
  set(files "")
  foreach(library IN LISTS ARGN)
    if(NOT TARGET ${library})
      list(APPEND files ${library})
      continue()
    endif()
    get_target_property(type ${library} TYPE)
    if(NOT type STREQUAL "INTERFACE_LIBRARY")
      get_target_property(file ${library} LOCATION)
      list(APPEND files ${file})
    endif()
    get_target_property(linked ${library} INTERFACE_LINK_LIBRARIES)
    if(linked)
      rankwise_files_of(linked ${linked})
      list(APPEND files ${linked})
    endif()
  endforeach()
  set(${result} ${files} PARENT_SCOPE)
endfunction()

# rankwise_check_same_mpi("MPI's libraries" "HDF5's libraries")
function(rankwise_check_same_mpi mpi_libraries hdf5_libraries)
  rankwise_files_of(mpi_libraries ${mpi_libraries})
  rankwise_files_of(hdf5_libraries ${hdf5_libraries})
  list(FILTER hdf5_libraries INCLUDE REGEX "libhdf5")
  if(NOT mpi_libraries OR NOT hdf5_libraries)
    return()  # a compiler of the machine's own brings them, both from one hand
  endif()
  rankwise_mpi_of(mpi ${mpi_libraries})
  rankwise_mpi_of(hdf5 ${hdf5_libraries})
  if(NOT hdf5 STREQUAL "none" AND NOT mpi STREQUAL hdf5)
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
