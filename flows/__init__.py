"""One Prefect flow per method, and the command line."""

from understudy.cores import let_threads_sleep

# A worker imports a flow before anything of it imports torch.
let_threads_sleep()
