#pragma once

#include <string>

#include "tests/judge/mpi/connection.hpp"

/// @file
/// MPI's handles and what they stand for here. Handles are pointers, as in Open MPI.

namespace judge {

/// What a communicator's handle stands for.
Communicator& of(MPI_Comm handle);
/// The handle of a communicator that was made here.
inline MPI_Comm handle_of(Communicator* communicator)
{
  return reinterpret_cast<MPI_Comm>(communicator);
}

/// Bytes of one element; the job ends for a type that the judge does not know.
std::size_t size_of(MPI_Datatype type);

/// Fills a status, unless it is ignored.
void fill(MPI_Status* status, int source, int tag, std::size_t bytes);
/// The bytes that fill() stored.
std::size_t bytes_of(const MPI_Status& status);

/// `count` elements in memory.
std::span<std::byte> elements(void* data, int count, MPI_Datatype type);
std::span<const std::byte> elements(const void* data, int count, MPI_Datatype type);  ///< the same, to read

/// Replaces @p sum by `sum op more`, element by element.
void reduce(std::span<std::byte> sum, std::span<const std::byte> more, MPI_Datatype type, MPI_Op op);

}  // namespace judge
