#include "common/messages/shared_memory.hpp"

#include <array>
#include <cerrno>
#include <cstring>
#include <exception>
#include <limits>
#include <map>
#include <new>
#include <unistd.h>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/statvfs.h>

#include "common/base/text.hpp"
#include "common/messages/meeting.hpp"

namespace rankwise {

namespace {

constexpr std::int64_t alignment = 64;  // in bytes: of buffers, and of data that ranks write concurrently

/// Location of an address as posted by a rank: window, and offset in bytes.
struct PostedPlace {
  std::int64_t window = -1;  // -1: memory that is not shared
  std::int64_t offset = 0;

  friend bool operator==(const PostedPlace&, const PostedPlace&) = default;
};

/// Header of a rank's section of the first window.
struct alignas(alignment) Control {
  Meeting meeting;                   // only that of rank 0 is used
  std::array<PostedPlace, 2> place;  // used in turn by calls of peers()
};

constexpr std::int64_t control_bytes = 4096;  // one page, so that the areas are page-aligned
static_assert(sizeof(Control) <= control_bytes);

/// A window: one section of shared memory on each rank.
struct Window {
  MPI_Win handle = MPI_WIN_NULL;
  std::int64_t number = 0;     // number of windows created before it
  std::int64_t bytes = 0;      // size of this rank's section
  std::vector<std::byte*> at;  // start of each rank's section; multiples of 64
};

void free_window(Window& window)
{
  check_mpi(MPI_Win_free(&window.handle), "freeing shared memory");
}

/// Free bytes of shared memory, as far as known.
std::int64_t free_bytes()
{
  struct statvfs files {};
  if (statvfs("/dev/shm", &files) != 0) return std::numeric_limits<std::int64_t>::max();
  return static_cast<std::int64_t>(files.f_bavail) * static_cast<std::int64_t>(files.f_frsize);
}

/// Allocates all pages of a section now. Touching a page when memory is exhausted kills the process; this call
/// returns an error instead.
bool populate([[maybe_unused]] std::byte* first, [[maybe_unused]] std::int64_t bytes)
{
#ifdef MADV_POPULATE_WRITE
  const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto begin = reinterpret_cast<std::uintptr_t>(first) / page * page;
  const auto end = reinterpret_cast<std::uintptr_t>(first) + static_cast<std::uintptr_t>(bytes);
  int code = 0;
  do code = madvise(reinterpret_cast<void*>(begin), end - begin, MADV_POPULATE_WRITE);
  while (code != 0 && errno == EINTR);
  return code == 0 || errno == EINVAL;  // EINVAL: not supported by this system
#else
  return true;
#endif
}

}  // namespace

struct SharedMemory::State final : Device {
  explicit State(const Communicator& communicator);
  ~State() override;

  DeviceKind kind() const override { return DeviceKind::cpu; }
  std::string name() const override { return "cpu"; }
  void* allocate(std::int64_t bytes) override;
  void release(void* memory, std::int64_t bytes) noexcept override;
  std::unique_ptr<Stream> make_stream() override { return make_cpu_device()->make_stream(); }

  Window make_window(std::int64_t bytes);
  PostedPlace place_of(const std::byte* own) const;
  void let_messages_go_on() const;

  const Communicator& ranks;
  const int exceptions = std::uncaught_exceptions();  // in flight at construction
  std::int64_t windows_made = 0;
  std::map<const std::byte*, Window> windows;    // windows of buffers, by their first byte on this rank
  Window first;                                  // control blocks and staging areas
  std::vector<Control*> control;                 // by rank
  std::array<std::vector<std::byte*>, 2> areas;  // by exchange (modulo 2) and rank
  std::vector<void*> found;                      // result of peers()
  std::uint32_t round = 0;                       // number of barriers that this rank has passed
  std::size_t call = 0, turn = 0;                // number of calls of peers() and next_areas(), modulo 2
};

SharedMemory::State::State(const Communicator& communicator) : ranks(communicator)
{
  check(ranks.split_by_machine().ranks() == ranks.ranks(), "ranks on different machines cannot share memory");
  first = make_window(control_bytes + 2 * area_bytes);
  for (std::byte* piece : first.at) {
    control.push_back(reinterpret_cast<Control*>(piece));
    for (std::size_t t = 0; t < areas.size(); ++t)
      areas[t].push_back(piece + control_bytes + static_cast<std::int64_t>(t) * area_bytes);
  }
  found.resize(first.at.size());
  new (control[static_cast<std::size_t>(ranks.rank())]) Control;
  check_mpi(MPI_Barrier(ranks.handle()), "waiting for shared memory");
}

SharedMemory::State::~State()
{
  if (std::uncaught_exceptions() > exceptions) return;
  try {
    check(windows.empty(), "shared memory was destroyed before its buffers");
    free_window(first);
  } catch (...) {
    abort_job();  // the other ranks wait in the same call
  }
}

Window SharedMemory::State::make_window(std::int64_t bytes)
{
  // A failure of MPI on one rank would leave the other ranks waiting.
  std::int64_t wanted = bytes, free = free_bytes();
  check_mpi(MPI_Allreduce(MPI_IN_PLACE, &wanted, 1, MPI_INT64_T, MPI_SUM, ranks.handle()), "adding up bytes");
  check_mpi(MPI_Bcast(&free, 1, MPI_INT64_T, 0, ranks.handle()), "agreeing on shared memory");
  const std::string failure =
      fmt::format("cannot allocate {} bytes of shared memory: the {} ranks need {} in total (see df /dev/shm)",
                  group_digits(bytes), ranks.ranks(), group_digits(wanted));
  check(wanted <= free, failure);

  Window window{.number = windows_made++, .bytes = bytes, .at = {}};
  MPI_Info info = MPI_INFO_NULL;
  check_mpi(MPI_Info_create(&info), "describing shared memory");
  check_mpi(MPI_Info_set(info, "alloc_shared_noncontig", "true"), "describing shared memory");
  void* own = nullptr;
  check_mpi(MPI_Win_allocate_shared(bytes + alignment, 1, info, ranks.handle(), &own, &window.handle),
            "allocating shared memory");
  check_mpi(MPI_Info_free(&info), "describing shared memory");
  check_mpi(MPI_Win_set_errhandler(window.handle, MPI_ERRORS_RETURN), "asking MPI for error codes");
  for (int r = 0; r < ranks.ranks(); ++r) {
    MPI_Aint size = 0;
    int unit = 0;
    void* piece = nullptr;
    check_mpi(MPI_Win_shared_query(window.handle, r, &size, &unit, &piece), "finding shared memory");
    const auto address = reinterpret_cast<std::uintptr_t>(piece);
    window.at.push_back(static_cast<std::byte*>(piece) + (alignment - address % alignment) % alignment);
  }

  std::byte* mine = window.at[static_cast<std::size_t>(ranks.rank())];
  int populated = populate(mine, bytes) ? 1 : 0;
  check_mpi(MPI_Allreduce(MPI_IN_PLACE, &populated, 1, MPI_INT, MPI_MIN, ranks.handle()),
            "agreeing on shared memory");
  if (populated == 0) {
    free_window(window);
    throw Error(failure);
  }
  if (poisons_memory) std::memset(mine, 0xFF, static_cast<std::size_t>(bytes));
  return window;
}

void* SharedMemory::State::allocate(std::int64_t bytes)
{
  Window window = make_window(bytes);
  std::byte* own = window.at[static_cast<std::size_t>(ranks.rank())];
  windows.emplace(own, std::move(window));
  return own;
}

void SharedMemory::State::release(void* memory, std::int64_t) noexcept
{
  if (std::uncaught_exceptions() > exceptions) return;  // the other ranks might not take part
  try {
    const auto window = windows.find(static_cast<std::byte*>(memory));
    check(window != windows.end(), "memory was released that is not shared");
    free_window(window->second);
    windows.erase(window);
  } catch (...) {
    abort_job();  // the other ranks wait in the same call
  }
}

PostedPlace SharedMemory::State::place_of(const std::byte* own) const
{
  const auto behind = windows.upper_bound(own);
  if (behind == windows.begin()) return {};
  const auto& [begin, window] = *std::prev(behind);
  if (own >= begin + window.bytes) return {};
  return {window.number, own - begin};
}

void SharedMemory::State::let_messages_go_on() const
{
  int flag = 0;
  check_mpi(MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, ranks.handle(), &flag, MPI_STATUS_IGNORE),
            "making progress on messages");
}

SharedMemory::SharedMemory(const Communicator& communicator) : state_(std::make_unique<State>(communicator)) {}
SharedMemory::~SharedMemory() = default;

Device& SharedMemory::device()
{
  return *state_;
}

std::span<std::byte* const> SharedMemory::next_areas()
{
  state_->turn ^= 1;
  return state_->areas[state_->turn];
}

std::span<void* const> SharedMemory::peers(const void* own)
{
  State& s = *state_;
  const PostedPlace place = s.place_of(static_cast<const std::byte*>(own));
  // A slow rank may still be reading the previous call's posts, but all have read those of the call before it.
  s.call ^= 1;
  s.control[static_cast<std::size_t>(s.ranks.rank())]->place[s.call] = place;
  barrier();
  for (const Control* control : s.control)
    if (place.window < 0 || control->place[s.call] != place) return {};

  const Window& window = s.windows.find(static_cast<const std::byte*>(own) - place.offset)->second;
  for (std::size_t r = 0; r < window.at.size(); ++r) s.found[r] = window.at[r] + place.offset;
  return s.found;
}

void SharedMemory::barrier()
{
  State& s = *state_;
  s.control.front()->meeting.meet(s.ranks.ranks(), ++s.round, [&s] { s.let_messages_go_on(); });
}

}  // namespace rankwise
