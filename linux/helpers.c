// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Static inlines and macros of the kernel that Rust cannot call, one function each.
 */
#include <linux/build_bug.h>
#include <linux/fault-inject.h>
#include <linux/fs.h>
#include <linux/hmm.h>
#include <linux/io.h>
#include <linux/memremap.h>
#include <linux/migrate.h>
#include <linux/mm.h>
#include <linux/mmu_notifier.h>
#include <linux/moduleparam.h>
#include <linux/pagemap.h>
#include <linux/sched/mm.h>
#include <linux/sched/signal.h>
#include <linux/sysfs.h>

#include "helpers.h"

static char vkfd_sabotage[256];
module_param_string(sabotage, vkfd_sabotage, sizeof(vkfd_sabotage), 0444);
MODULE_PARM_DESC(sabotage, "In builds for it only: what is broken on purpose, names of docs/sabotage.md with commas");

const char *vkfd_sabotage_names(void)
{
	return vkfd_sabotage;
}

#ifdef CONFIG_FAULT_INJECTION
/* Made to fail by /proc/thread-self/fail-nth only. Tests make thousands fail: not a word of it in the log. */
static struct fault_attr vkfd_failpoint = {
	.interval = 1,
	.times = ATOMIC_INIT(1),
	.ratelimit_state = RATELIMIT_STATE_INIT_DISABLED,
	.verbose = 0,
};

bool vkfd_should_fail(void)
{
	return should_fail(&vkfd_failpoint, 1);
}
#else
bool vkfd_should_fail(void)
{
	return false;
}
#endif

void vkfd_reclaim_begin(void)
{
	fs_reclaim_acquire(GFP_KERNEL);
}

void vkfd_reclaim_end(void)
{
	fs_reclaim_release(GFP_KERNEL);
}

bool vkfd_fatal_signal_pending(void)
{
	return fatal_signal_pending(current);
}

void vkfd_cond_resched(void)
{
	cond_resched();
}

void vkfd_interval_set_seq(struct mmu_interval_notifier *notifier, unsigned long seq)
{
	mmu_interval_set_seq(notifier, seq);
}

bool vkfd_interval_read_retry(struct mmu_interval_notifier *notifier, unsigned long seq)
{
	return mmu_interval_read_retry(notifier, seq);
}

struct cdev *vkfd_inode_cdev(struct inode *inode)
{
	return inode->i_cdev;
}

phys_addr_t vkfd_page_phys(struct page *page)
{
	return page_to_phys(page);
}

void *vkfd_page_address(struct page *page)
{
	return page_address(page);
}

struct page *vkfd_pfn_to_page(unsigned long pfn)
{
	return pfn_to_page(pfn);
}

unsigned long vkfd_page_to_pfn(struct page *page)
{
	return page_to_pfn(page);
}

void vkfd_lock_page(struct page *page)
{
	lock_page(page);
}

void vkfd_put_page(struct page *page)
{
	put_page(page);
}

bool vkfd_page_is_anon(struct page *page)
{
	return folio_test_anon(page_folio(page));
}

bool vkfd_page_is_ksm(struct page *page)
{
	return folio_test_ksm(page_folio(page));
}

bool vkfd_page_is_zone_device(struct page *page)
{
	return is_zone_device_page(page);
}

bool vkfd_page_is_device_private(struct page *page)
{
	return is_device_private_page(page);
}

struct dev_pagemap *vkfd_folio_pgmap(struct folio *folio)
{
	return folio->pgmap;
}

bool vkfd_vma_is_heap_or_stack(const struct vm_area_struct *vma)
{
	return vma_is_initial_heap(vma) || vma_is_initial_stack(vma);
}

gfp_t vkfd_gfp_user_page(void)
{
	return GFP_HIGHUSER_MOVABLE | __GFP_NOWARN;
}

void vkfd_attribute_init(struct attribute *attribute)
{
	sysfs_attr_init(attribute);
}

/*
 * Whether a thread that holds no spin lock may sleep: not while the kernel takes memory away from a process that is
 * being killed for want of memory. Only debug kernels know.
 */
bool vkfd_may_sleep(void)
{
#ifdef CONFIG_DEBUG_ATOMIC_SLEEP
	return current->non_block_count == 0;
#else
	return true;
#endif
}

/* What hmm.rs declares by hand. */
static_assert(sizeof(struct hmm_range) == 64);
static_assert(offsetof(struct hmm_range, notifier) == 0);
static_assert(offsetof(struct hmm_range, notifier_seq) == 8);
static_assert(offsetof(struct hmm_range, start) == 16);
static_assert(offsetof(struct hmm_range, end) == 24);
static_assert(offsetof(struct hmm_range, hmm_pfns) == 32);
static_assert(offsetof(struct hmm_range, default_flags) == 40);
static_assert(offsetof(struct hmm_range, pfn_flags_mask) == 48);
static_assert(offsetof(struct hmm_range, dev_private_owner) == 56);
static_assert(HMM_PFN_VALID == 1UL << 63 && HMM_PFN_REQ_FAULT == HMM_PFN_VALID);
static_assert(HMM_PFN_WRITE == 1UL << 62 && HMM_PFN_REQ_WRITE == HMM_PFN_WRITE);
static_assert(HMM_PFN_ORDER_SHIFT == 53 && (unsigned long)HMM_PFN_FLAGS == ~((1UL << 53) - 1));

/* What migrate.rs declares by hand. */
static_assert(sizeof(struct migrate_vma) == 80);
static_assert(offsetof(struct migrate_vma, vma) == 0);
static_assert(offsetof(struct migrate_vma, dst) == 8);
static_assert(offsetof(struct migrate_vma, src) == 16);
static_assert(offsetof(struct migrate_vma, cpages) == 24);
static_assert(offsetof(struct migrate_vma, npages) == 32);
static_assert(offsetof(struct migrate_vma, start) == 40);
static_assert(offsetof(struct migrate_vma, end) == 48);
static_assert(offsetof(struct migrate_vma, pgmap_owner) == 56);
static_assert(offsetof(struct migrate_vma, flags) == 64);
static_assert(offsetof(struct migrate_vma, fault_page) == 72);
static_assert(MIGRATE_PFN_VALID == 1 && MIGRATE_PFN_MIGRATE == 2 && MIGRATE_PFN_SHIFT == 6);
static_assert(MIGRATE_VMA_SELECT_SYSTEM == 1 && MIGRATE_VMA_SELECT_DEVICE_PRIVATE == 2);
static_assert(MIGRATE_VMA_SELECT_DEVICE_COHERENT == 4);
