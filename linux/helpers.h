/* SPDX-License-Identifier: GPL-2.0 OR MIT */
#ifndef VKFD_HELPERS_H
#define VKFD_HELPERS_H

#include <linux/types.h>

const char *vkfd_sabotage_names(void);
bool vkfd_should_fail(void);
void vkfd_reclaim_begin(void);
void vkfd_reclaim_end(void);
bool vkfd_fatal_signal_pending(void);
void vkfd_cond_resched(void);

struct mmu_interval_notifier;
void vkfd_interval_set_seq(struct mmu_interval_notifier *notifier, unsigned long seq);
bool vkfd_interval_read_retry(struct mmu_interval_notifier *notifier, unsigned long seq);

struct inode;
struct cdev;
struct cdev *vkfd_inode_cdev(struct inode *inode);

struct page;
phys_addr_t vkfd_page_phys(struct page *page);
void *vkfd_page_address(struct page *page);
struct page *vkfd_pfn_to_page(unsigned long pfn);
unsigned long vkfd_page_to_pfn(struct page *page);
void vkfd_lock_page(struct page *page);
void vkfd_put_page(struct page *page);
bool vkfd_page_is_anon(struct page *page);
bool vkfd_page_is_ksm(struct page *page);
bool vkfd_page_is_zone_device(struct page *page);
bool vkfd_page_is_device_private(struct page *page);

struct folio;
struct dev_pagemap;
struct dev_pagemap *vkfd_folio_pgmap(struct folio *folio);

struct vm_area_struct;
bool vkfd_vma_is_heap_or_stack(const struct vm_area_struct *vma);

gfp_t vkfd_gfp_user_page(void);

struct attribute;
void vkfd_attribute_init(struct attribute *attribute);

bool vkfd_may_sleep(void);

#endif
