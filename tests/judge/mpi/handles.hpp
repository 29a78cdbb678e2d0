#pragma once

#include <string>
#include <type_traits>

#include "tests/judge/mpi/connection.hpp"

/// @file
/// MPI's handles and what they stand for here. Where handles are pointers (Open MPI, the ABI of MPI 5) a handle is the address
/// of its object, where they are numbers (MPICH and its derivatives) it is a number for that address.

namespace judge {

int number_of(void* address);  ///< a number for an address, always the same and none that MPI itself uses
void* address_of(int number);  ///< the address that number_of() gave this number

/// The handle of an object that was made here.
template <class Handle>
Handle handle_of(void* object)
{
  if constexpr (std::is_pointer_v<Handle>)
    return static_cast<Handle>(object);
  else
    return number_of(object);
}

/// The object that a handle stands for; the handle has to be from handle_of().
template <class T, class Handle>
T* object_of(Handle handle)
{
  if constexpr (std::is_pointer_v<Handle>)
    return static_cast<T*>(static_cast<void*>(handle));
  else
    return static_cast<T*>(address_of(handle));
}

/// What a communicator's handle stands for.
Communicator& of(MPI_Comm handle);

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

/// A type whose elements have this number of bytes, one after the other.
MPI_Datatype type_of(std::size_t bytes);

}  // namespace judge

/// Begins the definition of a call that returns an int. Each has both names of the profiling interface; a program may have the
/// first one itself.
#define RANKWISE_CALL(NAME, ...)                                                           \
  extern "C" decltype(PMPI_##NAME) MPI_##NAME __attribute__((weak, alias("PMPI_" #NAME))); \
  extern "C" int PMPI_##NAME(__VA_ARGS__)
