// MPI's calls that concern no message: beginning and end, communicators, groups, information.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <dlfcn.h>
#include <map>
#include <tuple>

#include "tests/judge/mpi/handles.hpp"

using namespace judge;

namespace {

int initialized = 0, finalized = 0;

/// Ranks of the job.
using Ranks = std::vector<int>;

MPI_Group handle_of_group(Ranks ranks)
{
  return handle_of<MPI_Group>(new Ranks(std::move(ranks)));
}

const Ranks& ranks_of(MPI_Group handle)
{
  return *object_of<const Ranks>(handle);
}

int put_text(const char* text, char* to, int* length)
{
  std::strcpy(to, text);
  *length = static_cast<int>(std::strlen(text));
  return MPI_SUCCESS;
}

/// The members of a communicator, in parts of equal color, ordered by key.
int split(MPI_Comm comm, int color, int key, MPI_Comm* part, const char* call)
{
  Communicator& whole = of(comm);
  const int own[] = {color, key, connection().next_context()};
  int context = 0;
  std::vector<std::tuple<int, int>> members;  // key and rank
  const auto finish = [&](const std::vector<std::vector<std::byte>>& all) {
    for (std::size_t r = 0; r < all.size(); ++r) {
      int other[3] = {};
      std::memcpy(other, all[r].data(), sizeof other);
      context = std::max(context, other[2]);
      if (other[0] == color) members.emplace_back(other[1], static_cast<int>(r));
    }
  };
  Request* request = connection().meet(whole, call, std::as_bytes(std::span(own)), finish);
  connection().wait([request] { return request->done; }, request->what);
  delete request;
  connection().use_context(context);
  *part = MPI_COMM_NULL;
  if (color == MPI_UNDEFINED) return MPI_SUCCESS;
  std::sort(members.begin(), members.end());
  auto* made = new Communicator{context, {}, 0};
  for (const auto& [k, rank] : members) {
    if (rank == whole.rank) made->rank = static_cast<int>(made->members.size());
    made->members.push_back(whole.members[static_cast<std::size_t>(rank)]);
  }
  *part = handle_of<MPI_Comm>(made);
  return MPI_SUCCESS;
}

}  // namespace

/// The function of g++'s OpenMP with which every kernel begins to compute.
extern "C" void GOMP_parallel(void (*work)(void*), void* data, unsigned threads, unsigned flags)
{
  static const auto next = reinterpret_cast<decltype(&GOMP_parallel)>(dlsym(RTLD_NEXT, "GOMP_parallel"));
  if (initialized != 0) connection().computes();
  next(work, data, threads, flags);
}

RANKWISE_CALL(Init_thread, int*, char***, int, int* provided)
{
  initialized = 1;
  connection();
  *provided = MPI_THREAD_MULTIPLE;
  return MPI_SUCCESS;
}

RANKWISE_CALL(Init, int* argc, char*** argv)
{
  int provided = 0;
  return PMPI_Init_thread(argc, argv, MPI_THREAD_SINGLE, &provided);
}

RANKWISE_CALL(Initialized, int* flag)
{
  *flag = initialized;
  return MPI_SUCCESS;
}

RANKWISE_CALL(Finalized, int* flag)
{
  *flag = finalized;
  return MPI_SUCCESS;
}

RANKWISE_CALL(Finalize)
{
  PMPI_Barrier(MPI_COMM_WORLD);
  connection().finalize();
  finalized = 1;
  return MPI_SUCCESS;
}

RANKWISE_CALL(Query_thread, int* provided)
{
  *provided = MPI_THREAD_MULTIPLE;
  return MPI_SUCCESS;
}

RANKWISE_CALL(Abort, MPI_Comm, int status)
{
  connection().abort(status, "");
}

extern "C" double MPI_Wtime() __attribute__((weak, alias("PMPI_Wtime")));
extern "C" double PMPI_Wtime()
{
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

RANKWISE_CALL(Comm_rank, MPI_Comm comm, int* rank)
{
  *rank = of(comm).rank;
  return MPI_SUCCESS;
}

RANKWISE_CALL(Comm_size, MPI_Comm comm, int* size)
{
  *size = static_cast<int>(of(comm).members.size());
  return MPI_SUCCESS;
}

RANKWISE_CALL(Comm_split, MPI_Comm comm, int color, int key, MPI_Comm* part)
{
  return split(comm, color, key, part, "MPI_Comm_split");
}

RANKWISE_CALL(Comm_split_type, MPI_Comm comm, int, int key, MPI_Info, MPI_Comm* part)
{
  return split(comm, of(comm).rank, key, part, "MPI_Comm_split_type");  // each rank has a machine of its own
}

RANKWISE_CALL(Comm_dup, MPI_Comm comm, MPI_Comm* copy)
{
  return split(comm, 0, of(comm).rank, copy, "MPI_Comm_dup");
}

RANKWISE_CALL(Comm_free, MPI_Comm* comm)
{
  *comm = MPI_COMM_NULL;  // requests may still refer to it
  return MPI_SUCCESS;
}

RANKWISE_CALL(Comm_get_attr, MPI_Comm, int key, void* value, int* flag)
{
  static int largest_tag = 1 << 30;
  *flag = key == MPI_TAG_UB ? 1 : 0;
  if (*flag != 0) *static_cast<int**>(value) = &largest_tag;
  return MPI_SUCCESS;
}

RANKWISE_CALL(Comm_group, MPI_Comm comm, MPI_Group* group)
{
  *group = handle_of_group(of(comm).members);
  return MPI_SUCCESS;
}

RANKWISE_CALL(Group_translate_ranks, MPI_Group from, int count, const int ranks[], MPI_Group to, int result[])
{
  for (int i = 0; i < count; ++i) {
    const auto found =
        std::find(ranks_of(to).begin(), ranks_of(to).end(), ranks_of(from).at(static_cast<std::size_t>(ranks[i])));
    result[i] = found == ranks_of(to).end() ? MPI_UNDEFINED : static_cast<int>(found - ranks_of(to).begin());
  }
  return MPI_SUCCESS;
}

RANKWISE_CALL(Group_free, MPI_Group* group)
{
  delete &ranks_of(*group);
  *group = MPI_GROUP_NULL;
  return MPI_SUCCESS;
}

RANKWISE_CALL(Info_create, MPI_Info* info)
{
  *info = MPI_INFO_NULL;
  return MPI_SUCCESS;
}

RANKWISE_CALL(Win_allocate_shared, MPI_Aint bytes, int, MPI_Info, MPI_Comm, void* base, MPI_Win* win)
{
  // The only member's.
  auto* memory = new std::vector<std::byte>(static_cast<std::size_t>(bytes));
  std::byte* const data = memory->data();
  std::memcpy(base, &data, sizeof data);
  *win = handle_of<MPI_Win>(memory);
  return MPI_SUCCESS;
}

RANKWISE_CALL(Win_shared_query, MPI_Win win, int, MPI_Aint* bytes, int* unit, void* base)
{
  auto& memory = *object_of<std::vector<std::byte>>(win);
  std::byte* const data = memory.data();
  std::memcpy(base, &data, sizeof data);
  *bytes = static_cast<MPI_Aint>(memory.size());
  *unit = 1;
  return MPI_SUCCESS;
}

RANKWISE_CALL(Win_free, MPI_Win* win)
{
  delete object_of<std::vector<std::byte>>(*win);
  *win = MPI_WIN_NULL;
  return MPI_SUCCESS;
}

RANKWISE_CALL(Type_size, MPI_Datatype type, int* size)
{
  *size = static_cast<int>(size_of(type));
  return MPI_SUCCESS;
}

RANKWISE_CALL(Type_contiguous, int count, MPI_Datatype type, MPI_Datatype* made)
{
  *made = type_of(elements(static_cast<void*>(nullptr), count, type).size());
  return MPI_SUCCESS;
}

RANKWISE_CALL(Type_free, MPI_Datatype* type)
{
  *type = MPI_DATATYPE_NULL;
  return MPI_SUCCESS;
}

RANKWISE_CALL(Get_processor_name, char* name, int* length)
{
  return put_text("judge", name, length);
}

RANKWISE_CALL(Get_library_version, char* version, int* length)
{
  return put_text("the judge's MPI", version, length);
}

RANKWISE_CALL(Error_string, int code, char* text, int* length)
{
  return put_text(("error " + std::to_string(code)).c_str(), text, length);
}

// HDF5 wants an attribute so that MPI_Finalize() ends it, and ends without it, too.
RANKWISE_CALL(Comm_create_keyval, MPI_Comm_copy_attr_function*, MPI_Comm_delete_attr_function*, int* key, void*)
{
  *key = 0;
  return MPI_SUCCESS;
}

RANKWISE_CALL(Comm_free_keyval, int* key)
{
  *key = MPI_KEYVAL_INVALID;
  return MPI_SUCCESS;
}

// What there is nothing to do for: every error ends the job, and attributes are not kept.
#define RANKWISE_NOTHING(NAME, ...) \
  RANKWISE_CALL(NAME, __VA_ARGS__)  \
  {                                 \
    return MPI_SUCCESS;             \
  }
RANKWISE_NOTHING(Comm_set_errhandler, MPI_Comm, MPI_Errhandler)
RANKWISE_NOTHING(Info_set, MPI_Info, const char*, const char*)
RANKWISE_NOTHING(Info_free, MPI_Info*)
RANKWISE_NOTHING(Win_set_errhandler, MPI_Win, MPI_Errhandler)
RANKWISE_NOTHING(Type_commit, MPI_Datatype*)
RANKWISE_NOTHING(Comm_set_attr, MPI_Comm, int, void*)
