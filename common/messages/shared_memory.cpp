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

constexpr std::int64_t alignment = 64;  // bytes: of a buffer, and of what ranks write at the same time

#ifdef RANKWISE_POISON
constexpr bool poisoned = true;
#else
constexpr bool poisoned = false;
#endif

/// Where a rank says that an address lies: in which window, and how many bytes from its first.
struct Place {
  std::int64_t window = -1;  // -1 for memory that is not shared
  std::int64_t offset = 0;

  friend bool operator==(const Place&, const Place&) = default;
};

/// What a rank's part of the first window begins with.
struct alignas(alignment) Control {
  Meeting meeting;             // that of rank 0 is used
  std::array<Place, 2> place;  // one call of peers() after the other
};

constexpr std::int64_t control_bytes = 4096;  // a page, so that the areas begin with one
static_assert(sizeof(Control) <= control_bytes);

/// One piece of shared memory at each rank.
struct Window {
  MPI_Win handle = MPI_WIN_NULL;
  std::int64_t number = 0;     // of windows made before it
  std::int64_t bytes = 0;      // of this rank's piece
  std::vector<std::byte*> at;  // where the pieces begin, by rank; multiples of 64
};

/// Bytes that shared memory has room for, as far as that can be known.
std::int64_t free_bytes()
{
  struct statvfs files {};
  if (statvfs("/dev/shm", &files) != 0) return std::numeric_limits<std::int64_t>::max();
  return static_cast<std::int64_t>(files.f_bavail) * static_cast<std::int64_t>(files.f_frsize);
}

/// Has the system find all pages of a piece of memory now. Whoever touches a page for which there is no room is
/// killed; this call only fails.
bool populate([[maybe_unused]] std::byte* first, [[maybe_unused]] std::int64_t bytes)
{
#ifdef MADV_POPULATE_WRITE
  const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto begin = reinterpret_cast<std::uintptr_t>(first) / page * page;
  const auto end = reinterpret_cast<std::uintptr_t>(first) + static_cast<std::uintptr_t>(bytes);
  int code = 0;
  do code = madvise(reinterpret_cast<void*>(begin), end - begin, MADV_POPULATE_WRITE);
  while (code != 0 && errno == EINTR);
  return code == 0 || errno == EINVAL;  // EINVAL: a system that does not know this
#else
  return true;
#endif
}

/// Ends the job with the exception that is being handled: the other ranks wait in the same call.
[[noreturn]] void abort_with_current_exception()
{
  abort_job(describe(std::current_exception()));
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
  Device& host_memory() override { return *this; }

  Window make_window(std::int64_t bytes);
  void free_window(Window& window);
  bool on_all_ranks(bool here);
  Place place_of(const std::byte* own) const;
  void let_messages_go_on() const;

  const Communicator& ranks;
  const int exceptions = std::uncaught_exceptions();  // that were on their way when this was made
  std::int64_t windows_made = 0;
  std::map<const std::byte*, Window> windows;    // of the buffers, by the first byte at this rank
  Window first;                                  // what is shared behind the scenes
  std::vector<Control*> control;                 // by rank
  std::array<std::vector<std::byte*>, 2> areas;  // by turn and rank
  std::vector<void*> found;                      // by peers()
  std::uint32_t round = 0;                       // barriers that this rank has been through
  std::size_t call = 0, turn = 0;                // of peers() and next_areas(), modulo 2
};

SharedMemory::State::State(const Communicator& communicator) : ranks(communicator)
{
  check(ranks.split_by_machine().ranks() == ranks.ranks(),
        "memory was to be shared by ranks that are not all on one machine");
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
    check(windows.empty(), "shared memory was given up while buffers lay in it");
    free_window(first);
  } catch (...) {
    abort_with_current_exception();
  }
}

bool SharedMemory::State::on_all_ranks(bool here)
{
  int all = here;
  check_mpi(MPI_Allreduce(MPI_IN_PLACE, &all, 1, MPI_INT, MPI_MIN, ranks.handle()), "agreeing on shared memory");
  return all != 0;
}

Window SharedMemory::State::make_window(std::int64_t bytes)
{
  // MPI's own failure, on one rank, would leave the others waiting.
  std::int64_t wanted = bytes, free = free_bytes();
  check_mpi(MPI_Allreduce(MPI_IN_PLACE, &wanted, 1, MPI_INT64_T, MPI_SUM, ranks.handle()), "adding up bytes");
  check_mpi(MPI_Bcast(&free, 1, MPI_INT64_T, 0, ranks.handle()), "agreeing on shared memory");
  const std::string failure = fmt::format(
      "there is no room for {} bytes of shared memory, of which the {} ranks want {} together (see df /dev/shm)",
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
  if (!on_all_ranks(populate(mine, bytes))) {
    free_window(window);
    throw Error(failure);
  }
  if (poisoned) std::memset(mine, 0xFF, static_cast<std::size_t>(bytes));
  return window;
}

void SharedMemory::State::free_window(Window& window)
{
  check_mpi(MPI_Win_free(&window.handle), "freeing shared memory");
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
  if (std::uncaught_exceptions() > exceptions) return;  // the others might not be there
  try {
    const auto window = windows.find(static_cast<std::byte*>(memory));
    check(window != windows.end(), "memory was given back that is not shared");
    free_window(window->second);
    windows.erase(window);
  } catch (...) {
    abort_with_current_exception();
  }
}

Place SharedMemory::State::place_of(const std::byte* own) const
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
            "letting messages go on");
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
  const Place place = s.place_of(static_cast<const std::byte*>(own));
  // Who is slow may still read what was posted in the last call; of the one before, all have read everything.
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
