#include "tests/judge/mpi/handles.hpp"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <type_traits>
#include <unordered_map>
#include <vector>

namespace judge {

namespace {

template <class T>
void combine(std::span<std::byte> sum, std::span<const std::byte> more, MPI_Op op)
{
  for (std::size_t at = 0; at + sizeof(T) <= sum.size(); at += sizeof(T)) {
    T a{}, b{};
    std::memcpy(&a, &sum[at], sizeof a);
    std::memcpy(&b, &more[at], sizeof b);
    if (op == MPI_SUM)
      a = static_cast<T>(a + b);
    else if (op == MPI_PROD)
      a = static_cast<T>(a * b);
    else if (op == MPI_MAX)
      a = std::max(a, b);
    else if (op == MPI_MIN)
      a = std::min(a, b);
    else if constexpr (std::is_integral_v<T>) {
      if (op == MPI_BOR)
        a = static_cast<T>(a | b);
      else if (op == MPI_BAND)
        a = static_cast<T>(a & b);
      else if (op == MPI_LOR)
        a = static_cast<T>(a != 0 || b != 0);
      else if (op == MPI_LAND)
        a = static_cast<T>(a != 0 && b != 0);
      else
        connection().abort(1, "the judge does not know this MPI_Op");
    } else
      connection().abort(1, "the judge does not know this MPI_Op");
    std::memcpy(&sum[at], &a, sizeof a);
  }
}

/// Where a status keeps the number of bytes: each library has a field of its own for it.
template <class Status>
auto& bytes_field(Status& status)
{
  if constexpr (requires { status._ucount; })
    return status._ucount;  // Open MPI
  else if constexpr (requires { status.count_lo; })
    return status.count_lo;  // MPICH
  else
    return status.MPI_internal[0];  // the ABI of MPI 5
}

/// The addresses that stand behind numbers; a number is a place in `addresses`, after first_number.
struct Numbered {
  std::mutex mutex;
  std::vector<void*> addresses;
  std::unordered_map<void*, int> numbers;
};
constexpr int first_number = 0x70000000;  // MPICH's own handles are below, or negative

Numbered& numbered()
{
  static Numbered all;
  return all;
}

/// The types that were made here.
struct Made {
  std::mutex mutex;
  std::unordered_map<MPI_Datatype, std::size_t> sizes;
} made;

}  // namespace

int number_of(void* address)
{
  const std::lock_guard lock(numbered().mutex);
  auto& [mutex, addresses, numbers] = numbered();
  const auto [entry, is_new] = numbers.try_emplace(address, first_number + static_cast<int>(addresses.size()));
  if (is_new) addresses.push_back(address);
  return entry->second;
}

void* address_of(int number)
{
  const std::lock_guard lock(numbered().mutex);
  if (number < first_number || number - first_number >= static_cast<int>(numbered().addresses.size()))
    connection().abort(1, "a handle was given that MPI has never returned");
  return numbered().addresses[static_cast<std::size_t>(number - first_number)];
}

Communicator& of(MPI_Comm handle)
{
  if (handle == MPI_COMM_WORLD) return connection().world();
  if (handle == MPI_COMM_SELF) return connection().self();
  if (handle == MPI_COMM_NULL) connection().abort(1, "MPI_COMM_NULL was given as a communicator");
  return *object_of<Communicator>(handle);
}

std::size_t size_of(MPI_Datatype type)
{
  const std::pair<MPI_Datatype, std::size_t> sizes[] = {
      {MPI_BYTE, 1},      {MPI_CHAR, 1},          {MPI_SIGNED_CHAR, 1}, {MPI_UNSIGNED_CHAR, 1}, {MPI_INT8_T, 1},
      {MPI_UINT8_T, 1},   {MPI_C_BOOL, 1},        {MPI_INT16_T, 2},     {MPI_UINT16_T, 2},      {MPI_INT, 4},
      {MPI_UNSIGNED, 4},  {MPI_INT32_T, 4},       {MPI_UINT32_T, 4},    {MPI_FLOAT, 4},         {MPI_LONG, 8},
      {MPI_LONG_LONG, 8}, {MPI_UNSIGNED_LONG, 8}, {MPI_INT64_T, 8},     {MPI_UINT64_T, 8},      {MPI_DOUBLE, 8}};
  for (const auto& [known, size] : sizes)
    if (type == known) return size;
  const std::lock_guard lock(made.mutex);
  if (const auto found = made.sizes.find(type); found != made.sizes.end()) return found->second;
  connection().abort(1, "the judge does not know this MPI_Datatype");
}

MPI_Datatype type_of(std::size_t bytes)
{
  const std::lock_guard lock(made.mutex);
  const auto type = handle_of<MPI_Datatype>(new std::byte);
  made.sizes[type] = bytes;
  return type;
}

void fill(MPI_Status* status, int source, int tag, std::size_t bytes)
{
  if (status == MPI_STATUS_IGNORE) return;
  status->MPI_SOURCE = source;
  status->MPI_TAG = tag;
  status->MPI_ERROR = MPI_SUCCESS;
  auto& field = bytes_field(*status);
  field = static_cast<std::remove_reference_t<decltype(field)>>(bytes);
}

std::size_t bytes_of(const MPI_Status& status)
{
  return static_cast<std::size_t>(bytes_field(status));
}

std::span<std::byte> elements(void* data, int count, MPI_Datatype type)
{
  if (count < 0) connection().abort(1, "a negative number of elements");
  return {static_cast<std::byte*>(data), static_cast<std::size_t>(count) * size_of(type)};
}

std::span<const std::byte> elements(const void* data, int count, MPI_Datatype type)
{
  return elements(const_cast<void*>(data), count, type);
}

void reduce(std::span<std::byte> sum, std::span<const std::byte> more, MPI_Datatype type, MPI_Op op)
{
  if (sum.size() != more.size()) connection().abort(1, "ranks give different numbers of elements to a reduction");
  if (type == MPI_FLOAT) return combine<float>(sum, more, op);
  if (type == MPI_DOUBLE) return combine<double>(sum, more, op);
  if (type == MPI_UINT64_T || type == MPI_UNSIGNED_LONG) return combine<std::uint64_t>(sum, more, op);
  switch (size_of(type)) {
    case 1:
      return combine<std::uint8_t>(sum, more, op);
    case 2:
      return combine<std::uint16_t>(sum, more, op);
    case 4:
      return combine<std::int32_t>(sum, more, op);
    default:
      return combine<std::int64_t>(sum, more, op);
  }
}

}  // namespace judge
